"""What a rehearsal has shown: whether the job would run, what is wrong, what was measured."""
