-- A run is in one of the two at a time, and the one of ended runs, which grows, is written once for each run. An index that
-- all runs are in is written by each change of a run, and cleaned each time of what the change before has left.
DROP INDEX runs_by_task;
DROP INDEX runs_active_by_task;
CREATE INDEX runs_active_by_task ON runs (task_id, id)
    WHERE state IN ('scheduled', 'queued', 'waiting', 'running');
CREATE INDEX runs_ended_by_task ON runs (task_id, id)
    WHERE state IN ('succeeded', 'failed', 'cancelled', 'dead');
