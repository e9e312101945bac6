"""Scripts that run inside a container of ours as `python3 -c`, one line of JSON per reading.

They use what the image has (standard library, Ray) and end when their input closes, so that none outlives its reader.
"""

from pathlib import Path

HERE = Path(__file__).parent
GPUS = (HERE / "gpus.py").read_text()
"""Arguments: GCS address, seconds between readings (0: one reading)."""
COMPLETION = (HERE / "completion.py").read_text()
"""Arguments: base URL, model, seconds for one request, seconds between readings (0: one reading).

What stays the same from one reading to the next is told once.
"""
