"""Does our SAC learn as SAC was published, and our TD3 as TD3? See docs/learning.md."""
