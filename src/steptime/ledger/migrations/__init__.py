"""The steps from one schema of the ledger to the next; shipped, and run on open."""
