"""The papers' requests: SP²Bench's questions (LAS), and a plan of 170 operators (Bobox)."""
