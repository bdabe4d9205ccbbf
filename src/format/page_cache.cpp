#include "glu_ckpt/checkpoint.hpp"
#include "io/directory.hpp"
#include "io/file.hpp"

namespace glu_ckpt {

void drop_page_cache(const std::filesystem::path& path) {
  if (!is_directory_at(path)) return File::open_read(path).drop_cache();
  for (const std::string& name : list_directory(path))
    if (is_file(path / name) || is_directory_at(path / name)) drop_page_cache(path / name);
}

}  // namespace glu_ckpt
