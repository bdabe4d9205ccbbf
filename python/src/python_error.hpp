#pragma once
/// glu_ckpt::Error as the Python exception glu_ckpt.Error.

#include <nanobind/nanobind.h>

#include <string>

#include "glu_ckpt/error.hpp"

namespace glu_ckpt::python {

/// From here on what the library throws becomes glu_ckpt.Error.
void translate_errors();

/// Sets the Python error. `found`: the JSON that a command gave before it failed; empty where it gave none.
void set_python_error(const Error& error, const std::string& found = {});

}  // namespace glu_ckpt::python
