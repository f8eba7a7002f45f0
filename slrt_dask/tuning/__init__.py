"""Settings that are found and not guessed: ranks and weights, judged on held-out observations."""
