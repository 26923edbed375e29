-- Nothing: applications leave what is to happen in their own transactions only in a database that they share.
SELECT 1;
