-- Tells whether two replicas have the same secret keys, and nothing about the keys; empty when their release wrote none.
ALTER TABLE instances ADD COLUMN key_check text NOT NULL DEFAULT '';
