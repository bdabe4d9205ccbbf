#include "format/torch_zip.hpp"

#include <gtest/gtest.h>
