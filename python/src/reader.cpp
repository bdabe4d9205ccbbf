#include "reader.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <sys/mman.h>

#include <cerrno>
#include <map>
#include <mutex>
#include <system_error>
#include <unordered_map>

#include "command.hpp"
#include "core/fail.hpp"
#include "glu_ckpt/checkpoint.hpp"
#include "io/file.hpp"
#include "io/file_backed.hpp"
#include "owned_tensor.hpp"

namespace nb = nanobind;

namespace glu_ckpt::python {
namespace {

/// A file in memory. Pages that are written to become this process's own, so that every library takes them.
std::shared_ptr<std::byte> map_file(const File& file) {
  const auto bytes = static_cast<std::size_t>(file.size());
  void* const mapped =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, file.descriptor(), 0);
  if (mapped == MAP_FAILED)
    fail(ErrorCode::Io, {file.path().string(), {}}, "{}: cannot be mapped into memory: {}", file.path().string(),
         std::generic_category().message(errno));
  return {static_cast<std::byte*>(mapped), [bytes](std::byte* begin) { (void)::munmap(begin, bytes); }};
}

class Reader {
 public:
  explicit Reader(const std::filesystem::path& path) : source_(open_source(path)) {
    const auto& tensors = source_->inventory().tensors;
    for (std::size_t i = 0; i < tensors.size(); ++i) numbers_.emplace(tensors[i].name, i);
  }

  const Source& source() const { return *source_; }

  const TensorRef& ref(const std::string& name) const { return source_->inventory().tensors[number_of(name)]; }

  /// Where its bytes lie as they are in one file, mapped; else read.
  OwnedTensor tensor(const std::string& name, bool raw) {
    const std::size_t number = number_of(name);
    const TensorRef& ref = source_->inventory().tensors[number];
    const auto as_asked = [&](OwnedTensor made) { return raw ? raw_bits(std::move(made), ref.bytes) : made; };
    const FileBacked* const backed = source_->file_backed();
    const FilePlace place = backed != nullptr ? backed->place(number) : FilePlace{};
    const i64 element_bytes = std::max(1, dtype_bits(ref.dtype) / 8);
    // A mapping begins with a page, so what is aligned in the file is aligned in memory.
    if (place.file != nullptr && place.offset % element_bytes == 0 && ref.bytes > 0) {
      const std::shared_ptr<std::byte> memory = mapping_of(*place.file);
      return as_asked({memory, memory.get() + place.offset, ref.dtype, ref.shape});
    }
    OwnedTensor made = new_tensor(ref.dtype, ref.shape, ref.bytes);
    source_->read(number, 0, {made.data, static_cast<std::size_t>(ref.bytes)});
    return as_asked(std::move(made));
  }

 private:
  std::size_t number_of(const std::string& name) const {
    const auto found = numbers_.find(name);
    if (found == numbers_.end()) throw nb::key_error(name.c_str());
    return found->second;
  }

  /// Unsigned elements of the same size; bytes where elements are smaller than one.
  /// One mapping a file, for as long as the reader or a tensor needs it.
  std::shared_ptr<std::byte> mapping_of(const File& file) {
    const std::lock_guard lock(mutex_);
    auto& mapping = mappings_[&file];
    if (!mapping) mapping = map_file(file);
    return mapping;
  }

  std::unique_ptr<Source> source_;
  std::unordered_map<std::string, std::size_t> numbers_;
  std::mutex mutex_;
  std::map<const File*, std::shared_ptr<std::byte>> mappings_;
};

nb::list names(const Reader& reader) {
  nb::list names;
  for (const TensorRef& tensor : reader.source().inventory().tensors) names.append(tensor.name);
  return names;
}

nb::tuple describe(const Reader& reader, const std::string& name) {
  const TensorRef& ref = reader.ref(name);
  nb::list shape;
  for (const i64 extent : ref.shape) shape.append(extent);
  const auto& files = reader.source().inventory().files;
  return nb::make_tuple(std::string(dtype_name(ref.dtype)), nb::tuple(shape), ref.bytes,
                        ref.file < files.size() ? files[ref.file] : std::string());
}

}  // namespace

void bind_reader(nb::module_& module) {
  nb::class_<Reader>(module, "Reader", "A checkpoint of any format, opened for reading.")
      .def(
          "__init__",
          [](Reader* place, nb::bytes path) {
            const std::string text = text_of(path);
            const nb::gil_scoped_release without_gil;
            new (place) Reader(text);
          },
          nb::arg("path"))
      .def_prop_ro(
          "format", [](const Reader& reader) { return std::string(to_string(reader.source().format())); },
          "\"safetensors\", \"torch\" or \"torch-dist\".")
      .def(
          "metadata",
          [](const Reader& reader) {
            nb::dict entries;
            for (const auto& [key, value] : reader.source().metadata()) entries[nb::cast(key)] = value;
            return entries;
          },
          "The text entries of safetensors' __metadata__, without this program's own.")
      .def("names", &names, "Names of all tensors, file by file.")
      .def("describe", &describe, nb::arg("name"), "(dtype, shape, bytes, file) of a tensor.")
      .def("tensor", &Reader::tensor, nb::arg("name"), nb::arg("raw"), nb::call_guard<nb::gil_scoped_release>(),
           "The tensor's bytes; with `raw` as unsigned integers.");
}

}  // namespace glu_ckpt::python
