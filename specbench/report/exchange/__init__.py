"""Result files of other harnesses, written from a run or compared with one."""
