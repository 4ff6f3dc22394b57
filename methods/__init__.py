"""The methods: one file each, named after its paper; ``conf/method/`` has their settings."""
