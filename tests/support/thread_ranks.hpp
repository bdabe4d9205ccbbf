#pragma once
/// Ranks that are threads of one process: what is done over Ranks, tested without MPI.

#include <condition_variable>
#include <functional>
#include <mutex>

#include "glu_ckpt/ranks.hpp"

namespace glu_ckpt::support {

/// Runs `program` as that many ranks at once, and returns when all have ended. An exception of a rank is rethrown here,
/// the lowest rank's; a program must not end on one rank while others wait for it.
void run_thread_ranks(int size, const std::function<void(Ranks&)>& program);

}  // namespace glu_ckpt::support
