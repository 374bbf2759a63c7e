"""What is ordered: clocks, races, the order that is missing, and when one execution stands for all."""
