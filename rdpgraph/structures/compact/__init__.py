"""Recursions over trees and bitexts that visit only the places a mask keeps."""
