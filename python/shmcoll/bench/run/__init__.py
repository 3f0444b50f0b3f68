# SPDX-License-Identifier: BSD-3-Clause
"""Starts the ranks of each backend, and measures.

torch_team  a team: the rank processes of one backend of torch; child: such a process, forked
hosts_team  ranks on several hosts, which torchrun has started
mpi_team    a team that mpirun has started; mpirun: the command lines of each MPI
rendezvous  how ranks that mpirun has started find the parent
started_by  torchrun, mpirun or srun, if one of them started this program
measure     rounds, alternating between backends
buffers     how many copies of the buffers, for cold caches
latency     what the time of one iteration is

In a rank:
rank        the program of one rank
startline   where ranks wait for the common start
calls       the operations, with buffers and checks; over_torch, over_mpi: their calls
exercise    how the calls are repeated and checked
ruler       a backend that only copies, to tell the machine's drift from a change
"""
