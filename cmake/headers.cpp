// The whole of the targets that own the precompiled headers (Layers.cmake).
