"""Result files of other harnesses, written from a run and read next to one."""
