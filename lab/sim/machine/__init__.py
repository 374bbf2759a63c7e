"""How a program runs: words, schedulers, the engines of the memory models, and a schedule written down."""
