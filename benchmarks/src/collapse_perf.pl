#!/usr/bin/perl
# Fold the output of perf script, line by line: the work of stackcollapse-perf.pl (FlameGraph), for machines without it.
use strict;
use warnings;

my (%weight, @stack, $comm);

sub finish {
    $weight{join(";", $comm, @stack)} += 1 if defined $comm && @stack;
    @stack = ();
    undef $comm;
}

while (my $line = <>) {
    next if $line =~ /^#/;
    chomp $line;
    if ($line eq "") {
        finish();
    } elsif ($line =~ /^(\S+\s*?\S*?)\s+(\d+)(?:\/(\d+))?\s/) {
        $comm = $1;
        $comm =~ tr/ /_/;
    } elsif ($line =~ /^\s*(\w+)\s*(.+) \((\S*)\)/) {
        my $name = $2;
        $name =~ s/;/:/g;
        $name =~ s/\+0x[0-9a-f]+$//;
        $name =~ s/\(.*// if $name !~ /\.\(.*\)\./;
        unshift @stack, $name;
    }
}
finish();
print "$_ $weight{$_}\n" for sort keys %weight;
