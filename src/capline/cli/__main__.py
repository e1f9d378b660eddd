"""`python -m capline.cli` is `capline`."""

from capline.cli.main import main

main()
