"""What a provider's headers ask for, under the name that callers know; `capline.model.retry_after` reads them."""

from capline.model.retry_after import retry_after

__all__ = ["retry_after"]
