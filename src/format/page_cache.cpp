#include "glu_ckpt/checkpoint.hpp"
#include "io/file.hpp"

namespace glu_ckpt {

void drop_page_cache(const std::filesystem::path& path) {
  namespace fs = std::filesystem;
  if (!fs::is_directory(path)) return File::open_read(path).drop_cache();
  for (const auto& entry : fs::directory_iterator(path))
    if (entry.is_regular_file()) File::open_read(entry.path()).drop_cache();
}

}  // namespace glu_ckpt
