// The loops themselves, compiled once for each instruction set: the file that includes this one says which
// (COIL_ISA 0 portable, 2 AVX2, 5 AVX-512 VNNI). Whole-number sums are exact, and floating-point sums have one
// fixed order, so every instruction set gives the same bits. Compiled without contraction of a*b + c.
#pragma once
#include "lists.hpp"
#include "places.hpp"
#include "rows.hpp"
