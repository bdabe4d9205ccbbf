#include "core/current_error.hpp"

#include <new>

namespace glu_ckpt {

Error current_error() {
  try {
    throw;
  } catch (const Error& error) {
    return error;
  } catch (const std::bad_alloc&) {
    return Error(ErrorCode::NoMemory, "out of memory; a smaller --max-memory or fewer --jobs may help");
  } catch (const std::exception& error) {
    return Error(ErrorCode::Io, error.what());
  }
}

}  // namespace glu_ckpt
