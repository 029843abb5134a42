"""A measured process from outside: its memory, its times, the machine it ran on."""
