"""One file a revision, `0001` onwards: the number orders them, so a newer ledger is told from a broken one."""
