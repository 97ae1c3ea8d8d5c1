// Python arrays by name: looked up, and checked for type, layout and alignment.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <type_traits>
#include <vector>

#include "checks.hpp"
#include "views.hpp"

namespace coil {

namespace nb = nanobind;

// The elements of an array, consecutive.
template <class T>
struct Span {
    const T *data = nullptr;
    std::int64_t size = 0;
    const T &operator[](std::int64_t i) const { return data[i]; }
};

class Arrays {
  public:
    explicit Arrays(nb::dict arrays) : arrays_(std::move(arrays)) {}

    bool has(const char *name) const { return arrays_.contains(name); }

    // An array of any shape.
    template <class T>
    Span<T> get(const char *name) {
        const Any &array = find(name);
        check(array.dtype() == nb::dtype<T>(), name, "has the wrong element type");
        return {static_cast<const T *>(array.data()), count(array)};
    }

    // Vectors in one of the three precisions: their bytes, and the number of values.
    Span<std::uint8_t> get_values(const char *name, Kind &kind) {
        const Any &array = find(name);
        if (array.dtype() == nb::dtype<std::int8_t>())
            kind = Kind::int8;
        else if (array.dtype() == HALF)
            kind = Kind::fp16;
        else {
            check(array.dtype() == nb::dtype<float>(), name, "has the wrong element type");
            kind = Kind::fp32;
        }
        return {static_cast<const std::uint8_t *>(array.data()), count(array)};
    }

    // The number of columns of a matrix.
    std::int64_t width(const char *name) {
        const Any &array = find(name);
        check(array.ndim() == 2, name, "is not a matrix");
        return static_cast<std::int64_t>(array.shape(1));
    }

  private:
    using Any = nb::ndarray<nb::ro, nb::device::cpu>;
    static constexpr nb::dlpack::dtype HALF{static_cast<std::uint8_t>(nb::dlpack::dtype_code::Float), 16, 1};

    static std::int64_t count(const Any &array) { return static_cast<std::int64_t>(array.size()); }

    const Any &find(const char *name) {
        check(arrays_.contains(name), name, "is missing");
        Any array;
        check(nb::try_cast(nb::object(arrays_[name]), array, false), name, "is not an array in memory");
        std::int64_t stride = 1;
        for (std::size_t i = array.ndim(); i-- > 0 && array.size() > 0;) {
            check(array.shape(i) == 1 || array.stride(i) == stride, name, "is not contiguous");
            stride *= static_cast<std::int64_t>(array.shape(i));
        }
        const std::size_t size = array.itemsize();
        check(size > 0 && reinterpret_cast<std::uintptr_t>(array.data()) % size == 0, name, "is not aligned");
        kept_.push_back(array);
        return kept_.back();
    }

    nb::dict arrays_;
    std::vector<Any> kept_;
};

}  // namespace coil
