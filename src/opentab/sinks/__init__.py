"""Where invoices go on to. A sink may fail and come back: nothing is lost meanwhile, and nothing else waits."""
