"""Why a job does not move."""
