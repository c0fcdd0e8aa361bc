// The whole of the programs that own the tests' precompiled headers (cmake/Layers.cmake).
