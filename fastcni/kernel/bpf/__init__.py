"""Load BPF programs and use BPF maps by bpf(2).

    objects            load, pin and open programs and maps; read and write elements
    redirect_programs  the programs of redirect.bpf.c; setup.py and clang make this module
"""
