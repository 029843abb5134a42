"""What a process of opentab stands on: settings, storage, durable files, locks, the heartbeat, Java."""
