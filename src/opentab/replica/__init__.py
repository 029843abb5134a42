"""A reader with its own copy of the balances and invoices. There may be many; none needs the pipeline to answer."""
