"""`python -m capline.cli` is `capline`."""

from capline.cli.start import main

main()
