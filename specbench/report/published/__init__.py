"""The papers' and leaderboards' figures beside a run's."""
