#pragma once
/// The ranks of an MPI program. Built only where MPI is found; <mpi.h> is seen only in the .cpp.

#include <memory>

#include "glu_ckpt/ranks.hpp"

namespace glu_ckpt {

/// It lasts from MPI_Init to MPI_Finalize. A program has one object, which the main thread makes and destroys.
class MpiProgram {
 public:
  /// MPI takes its own arguments out. Throws NotSupported where it cannot be called from several threads in turn.
  MpiProgram(int& argc, char**& argv);
  /// Waits for the other ranks to come here, too.
  ~MpiProgram();
  MpiProgram(const MpiProgram&) = delete;
  MpiProgram& operator=(const MpiProgram&) = delete;

  /// Ends all ranks at once, with this exit status for the whole program: of a failure that the others do not know of
  /// and would wait for.
  [[noreturn]] void abort(int status);
};

/// All ranks of the program. Called by all together, as is the destructor. A message is cut into pieces of
/// `piece_bytes`, because MPI counts in int.
std::unique_ptr<Ranks> make_mpi_ranks(i64 piece_bytes = i64{1} << 30);

}  // namespace glu_ckpt
