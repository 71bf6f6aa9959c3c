"""Stages that decide which element is next, or have several inputs."""
