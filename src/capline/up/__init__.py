"""`capline up`: the whole system on this machine, for trying and for showing: servers, services, a campaign, load.

    plan        what starts, in which order, by which commands: from what is installed here
    files       what the parts read: settings, policies, users, nginx and Prometheus
    processes   starts the parts, waits until they answer, restarts those that died, ends them all
    with_parent      runs a program that ends with its parent
    folder      the one directory of a run: made anew, locked, removed at the end
    ports       free ports of loopback
    publisher   a part: builds the users' segments and publishes a version a minute
    receiver    a part: takes the campaign's messages and shows them
    traffic     a part: a few requests a second

The rule: parts are programs, started as an operator starts them. Nothing of the library knows that it runs here.
"""
