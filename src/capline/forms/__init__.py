"""Reading YAML files of a known form, with a line for every fault: policies and campaigns."""
