#include "python_error.hpp"

#include <nanobind/stl/string.h>

#include "core/fail.hpp"

namespace nb = nanobind;

namespace glu_ckpt::python {

void set_python_error(const Error& error, const std::string& found) {
  const auto text_or_none = [](const std::string& text) {
    return text.empty() ? nb::none()
                        : nb::object(nb::steal(PyUnicode_DecodeFSDefaultAndSize(text.data(), std::ssize(text))));
  };
  const nb::object make = nb::module_::import_("glu_ckpt._error").attr("from_program");
  const std::string_view name = slug(error.code());
  const std::string message = error.what();
  const nb::object made = make(nb::steal(PyUnicode_DecodeUTF8(message.data(), std::ssize(message), "replace")),
                               nb::str(name.data(), name.size()), static_cast<int>(exit_status(error.code())),
                               text_or_none(error.file()), text_or_none(error.tensor()), text_or_none(found));
  PyErr_SetObject(made.type().ptr(), made.ptr());
}

void translate_errors() {
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const Error& error) {
      set_python_error(error);
    }
  });
}

}  // namespace glu_ckpt::python
