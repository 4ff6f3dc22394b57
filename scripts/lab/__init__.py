"""The lab: commands that measure the harness and the machine. No run of specbench needs it."""
