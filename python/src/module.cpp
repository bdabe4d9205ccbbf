/// The extension module glu_ckpt._core. People call the functions of the package, which are written in Python.

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "command.hpp"
#include "glu_ckpt/ops/cuda.hpp"
#include "owned_tensor.hpp"
#include "python_error.hpp"
#include "reader.hpp"
#include "tensor_ops.hpp"

namespace nb = nanobind;

NB_MODULE(_core, module) {
  using namespace glu_ckpt::python;
  module.doc() = "The compiled part of glu_ckpt.";
  module.attr("__version__") = GLU_CKPT_VERSION;
  translate_errors();
  module.def(
      "run_command",
      [](const nb::list& words, nb::object on_progress, nb::object on_warning) {
        const std::string found = run_command(texts_of(words), std::move(on_progress), std::move(on_warning));
        return nb::bytes(found.data(), found.size());
      },
      nb::arg("words"), nb::arg("on_progress").none(), nb::arg("on_warning"),
      "Runs a command of the program and returns the JSON that it prints.");
  module.def("built_with_cuda", &glu_ckpt::built_with_cuda, "Whether CUDA kernels were compiled in.");
  module.def("why_no_cuda", &glu_ckpt::why_no_cuda, "Why no GPU can be used; empty where one can.");
  bind_owned_tensor(module);
  bind_reader(module);
  bind_glu_order(module);
  bind_offsets(module);
  bind_diff(module);
  bind_grouped_mlp(module);
  bind_state_plan(module);
  bind_many(module);
  bind_recipes(module);
  bind_training(module);
}
