#pragma once
/// Counts the threads that can run at once.

namespace glu_ckpt {

/// Processors that this process may run on, at least 1: of a machine's, those that taskset, a batch system or a
/// container's set of processors leaves to it.
int usable_cores();

}  // namespace glu_ckpt
