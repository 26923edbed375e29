-- Nothing: SQLite writes an index only when what it holds changes.
SELECT 1;
