"""What a candidate's source may say, before a compiler sees it: cpp.check and cuda.check, one sentence or None.

C++ runs in a process of ours, so it is read as a small typed language (tokens, words, names, expressions); CUDA runs on
a device, so only what reaches the compiler and the host is looked at.
"""
