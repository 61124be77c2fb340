"""Steps of an exchange: through servers, around a ring, spread layers, stages of ZeRO."""
