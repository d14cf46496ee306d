// The attributes of a node as the C interfaces list them.
#pragma once

#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "capsedge/kernels.h"
#include "operators/attributes.h"

namespace capsedge {

class ListedAttributes : public AttributeSource {
 public:
  ListedAttributes(const capsedge_kernel_attribute* list, int32_t count) : list_(list), count_(count) {}
  bool find(const char* name, std::vector<int64_t>& values) const override { return get(name, values); }
  bool find(const char* name, std::vector<float>& values) const override { return get(name, values); }

 private:
  template <typename T>
  bool get(const char* name, std::vector<T>& values) const {
    for (int32_t i = 0; i < count_; ++i) {
      if (std::strcmp(list_[i].name, name) != 0) continue;
      values.clear();
      for (int32_t k = 0; k < list_[i].count; ++k) {
        const double value = list_[i].values[k];
        if (std::is_integral_v<T> && !(value >= -0x1p63 && value < 0x1p63))
          throw Error(std::string("attribute '") + name + "' is no whole number of 64 bits");
        values.push_back(static_cast<T>(value));
      }
      return true;
    }
    return false;
  }

  const capsedge_kernel_attribute* list_;
  int32_t count_;
};

}  // namespace capsedge
