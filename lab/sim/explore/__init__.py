"""Many executions: schedulers, schedules that turn a race round, and who runs them."""
